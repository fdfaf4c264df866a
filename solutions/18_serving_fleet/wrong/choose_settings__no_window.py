# expect: expected a cost of at most
# fails: agents
def choose_settings(service: Service) -> Settings:
    """Free seats for the growth of demand within a cold start, and a window longer than the pauses."""
    return Settings("in_flight", service.seats / service.factor, 0)
