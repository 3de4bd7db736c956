"""People and service accounts. What they may do is in their grants."""

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """Someone who can log in; or, as a service account, only come with a token."""

    is_service = models.BooleanField(default=False)
