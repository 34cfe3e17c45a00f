from django.contrib.auth.models import User
from django.db import models


class Token(models.Model):
    digest = models.CharField(max_length=64, primary_key=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE)


class Order(models.Model):
    customer = models.CharField(max_length=150)
    item = models.CharField(max_length=40)


class Payment(models.Model):
    id = models.CharField(max_length=40, primary_key=True)
    customer = models.CharField(max_length=150)
    order = models.CharField(max_length=40)
    amount = models.IntegerField()
