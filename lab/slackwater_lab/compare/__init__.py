"""Slackwater beside what a user would pick instead: policies, comparisons in the lab, figures."""
