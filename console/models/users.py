"""People. Django's user under our own label, so that roles can come without a migration of ids."""

from django.contrib.auth.models import AbstractUser


class User(AbstractUser):
    """Someone who can log in."""
