"""The dashboard's endpoints: pages, API, controls, live updates, login, metrics."""
