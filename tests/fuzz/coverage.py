"""Which lines of jaxalign ran for the first time: what tells a new kind of input from another of the same."""

import sys


class NewLines:
    """Counts lines of jaxalign at their first run. Each line is switched off once it has run: it costs nothing later.

    Needs the monitoring interface of Python 3.12; without it, nothing is ever new.
    """

    def __init__(self):
        self.count = 0
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is None:
            return
        events = monitoring.events

        def line(code, number):
            self.count += "jaxalign" in code.co_filename
            return monitoring.DISABLE

        monitoring.use_tool_id(monitoring.PROFILER_ID, "jaxalign fuzzing")
        monitoring.register_callback(monitoring.PROFILER_ID, events.LINE, line)
        monitoring.set_events(monitoring.PROFILER_ID, events.LINE)

    @property
    def available(self) -> bool:
        """Whether this Python can say."""
        return hasattr(sys, "monitoring")
