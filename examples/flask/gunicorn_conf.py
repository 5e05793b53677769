"""Where the service is imported before the processes fork: `gunicorn --preload -c gunicorn_conf.py web:web`."""

from web import rota


def post_worker_init(worker: object) -> None:
    rota.open_until_exit()
