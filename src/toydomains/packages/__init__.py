"""Packaged goods: boxes, cans, bottles, jars, cartons, pouches. The label makes the class."""
