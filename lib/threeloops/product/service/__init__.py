"""A model behind HTTP, for operators. `threeloops serve` starts it.

>>> settings = load_settings(Path("serve.toml"))        # service/settings.py, and THREELOOPS_SERVE_… of the environment
>>> app = create_app(settings)                          # service/app.py, an ASGI application
>>> run(settings)                                       # service/server.py, until SIGTERM, which drains it

FastAPI is the front, and the engine has a process of its own (`engine/`). `admission/` decides which requests may run,
`observability/` has logs and metrics, and `models/` chooses the version that serves. This `__init__.py` imports
nothing, because the engine's process needs nothing of the front.
"""
