"""How long a test waits for what must come. Only a broken rota takes this long: a disk may stall for half a minute.

Not for what must come soon because of something, where something slower would bring it too: there the time is the test.
"""

PATIENCE = 120.0
