"""What a WSGI server imports, and `manage.py runserver` too."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = get_wsgi_application()

from rota.integrations.django import app  # noqa: E402

app.client().open_until_exit()  # the web processes enqueue; `manage.py rota` runs
