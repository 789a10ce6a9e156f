"""Settings of the property tests: no deadlines on shared machines, and no database left behind."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("ragbraid", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ragbraid")
