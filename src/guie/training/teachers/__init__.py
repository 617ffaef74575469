"""Models that a student learns from: beside it on its very views, or known beforehand of fixed views."""

from guie.training.teachers.retention import Retention
from guie.training.teachers.teachers import Taught, Teacher, Teachers, open_teachers
from guie.training.teachers.views import TeacherViews, teacher_views

__all__ = [
    "Retention",
    "Taught",
    "Teacher",
    "TeacherViews",
    "Teachers",
    "open_teachers",
    "teacher_views",
]
