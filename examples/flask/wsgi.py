"""What a WSGI server imports in each of its processes: `gunicorn wsgi:web`, `flask --app wsgi:web run`."""

from web import rota, web

rota.open_until_exit()  # or rota.client().open_until_exit(), when `rota run web:rota` runs the jobs elsewhere

__all__ = ["web"]
