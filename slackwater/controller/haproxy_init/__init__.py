"""`slackwater init`: the first configuration beside a running HAProxy."""
