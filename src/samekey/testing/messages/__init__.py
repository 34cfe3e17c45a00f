"""The suite for message adapters, a broker in memory, and what both are made of."""

from samekey.testing.messages.lab import Broker, Lab
from samekey.testing.messages.memory import RULES, CountRules, MemoryLabBroker
from samekey.testing.messages.suite import MessageAdapterSuite
from samekey.testing.messages.worker import Task

__all__ = ["RULES", "Broker", "CountRules", "Lab", "MemoryLabBroker", "MessageAdapterSuite", "Task"]
