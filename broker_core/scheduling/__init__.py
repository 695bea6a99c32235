"""Scheduled records: appended to their topic when their time comes."""
