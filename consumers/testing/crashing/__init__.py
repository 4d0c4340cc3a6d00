"""The crash kit: a component's run, killed everywhere, and compared with a run that was not.

``kit`` orders the runs and ``report`` says what they found. Each run has a copy of one database
(``databases``), whose whole content is read and compared (``contents``). The component runs in
processes of ``inside``, which ``interpreters`` starts and gives orders to (``orders``).
"""
