# expect: expected Settings(metric, target, window)
# fails: chat, agents, documents
def choose_settings(service: Service) -> Settings:
    """Settings with which the service is in time, at a cost that is allowed."""
    return ("in_flight", {"chat": 9, "agents": 12, "documents": 24}[service.name], 600)
