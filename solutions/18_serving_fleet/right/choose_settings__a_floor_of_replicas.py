def choose_settings(service: Service) -> Settings:
    """Shares of the seats by the speed of the bursts, with two replicas at least and a firm upper limit."""
    slow = service.ramp > service.cold_start * 1.4
    window = 600 if service.bursts > 100 else 240
    share = 0.95 if service.bursts > 100 else 0.77 if slow else 0.61
    peak = math.ceil(service.peak * service.hold / service.seats)
    return Settings("in_flight", share * service.seats, window, 2, 3 * peak)
