"""Paths of the pages."""

from django.urls import path

from console.pages import views

urlpatterns = [
    path("", views.fleet, name="fleet"),
    path("login", views.LogIn.as_view(), name="login"),
    path("logout", views.log_out, name="logout"),
]
