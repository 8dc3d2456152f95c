"""Requests from start to end: a model is leased, a task submitted, events returned. Begin with `service.py`.

    service = open_service(options, catalog, waiting=[])
    run = await service.start(task, model="default", id="req-1")
    while events := await run.take(): ...
    await run.aclose()
    await service.close(30.0)

`start` waits for the model to load, if need be, and for the worker to accept the request, so that every failure that
deserves a status code is raised before the first byte. A handler that must send bytes sooner (a keep-alive while a
model loads) runs `start` as a task and follows the load with `pool.states()`; cancelling that task releases everything.
"""
