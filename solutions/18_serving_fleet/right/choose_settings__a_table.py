def choose_settings(service: Service) -> Settings:
    """Tried out on a few days."""
    return {
        "chat": Settings("in_flight", 9.5, 120),
        "agents": Settings("in_flight", 15, 900),
        "documents": Settings("in_flight", 25, 900),
    }[service.name]
