"""Alarm rules for Prometheus and a dashboard for Grafana: `python -m samekey.hooks.alarms rules` prints one."""
