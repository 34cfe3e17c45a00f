"""Messages: handle each message once, whatever the broker does. One file per library of a broker.

from samekey.messages import Handler, header
from samekey.messages.pika import PikaConsumer
"""

from samekey.messages._ack import Action, Rules
from samekey.messages._message import Message, header
from samekey.messages.handler import AsyncHandler, Handler

__all__ = ["Action", "AsyncHandler", "Handler", "Message", "Rules", "header"]
