"""A model behind HTTP: what an operator runs. `threeloops serve` starts it.

>>> settings = load_settings(Path("serve.toml"))        # service/settings.py, and THREELOOPS_SERVE_… of the environment
>>> app = create_app(settings)                          # service/app.py, an ASGI application
>>> run(settings)                                       # service/server.py, until SIGTERM, which drains it

FastAPI stands in front and the engine has a process of its own (`engine/`). `admission/` decides who may join,
`observability/` says what happened, `models/` which version serves. Nothing is imported here, because the engine's
process needs none of the front.
"""
