import os

SECRET_KEY = os.environ.get("SHOP_SECRET", "for trying it out alone")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "django_shop.views"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_shop"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},  # writers wait their turn (Django 5.1)
    }
}

MIDDLEWARE = [
    "django_shop.keys.TokenMiddleware",  # who is it?
    "samekey.http.django.SamekeyMiddleware",  # and only then: was it asked before?
]
SAMEKEY = {"guard": "django_shop.keys.guard", "endpoint": "django_shop.keys.CARDS"}
