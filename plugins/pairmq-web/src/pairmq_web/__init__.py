"""A pair in web applications: `pairmq_web.fastapi`, `pairmq_web.asgi`, `pairmq_web.django`."""
