"""The console: jobs, audit and live pages for serving engines. One Django app; loads nothing."""
