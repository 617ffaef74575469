"""Rows of a manifest, and what is said of those that are refused."""

from __future__ import annotations

import pytest

from guie.base.errors import UserError
from guie.data.manifest import load_manifest

HEADER = "image_path,label,domain,split,role"
GOOD = """\
t/0.jpg,toys/car,toys,train,train
t/1.jpg,toys/car,toys,train,train
t/2.jpg,toys/bus,toys,val,both
t/3.jpg,toys/bus,toys,val,both
t/4.jpg,toys/cat,toys,test,query
t/5.jpg,toys/cat,toys,test,index"""
SHARED = f"{GOOD}\nt/9.jpg,toys/car,toys,test,index"  # its class is in train too


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    return str(caught.value)
