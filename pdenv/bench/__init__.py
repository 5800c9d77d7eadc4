"""Comparing policies: runs over common arrivals, tables and plots."""
