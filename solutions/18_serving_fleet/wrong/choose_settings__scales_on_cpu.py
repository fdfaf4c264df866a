# expect: of the requests are in time
# fails: chat, agents, documents
def choose_settings(service: Service) -> Settings:
    """Free seats for the growth of demand within a cold start, and a window longer than the pauses."""
    return Settings("cpu", 70, 300, 2)
