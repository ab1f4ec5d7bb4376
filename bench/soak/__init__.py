"""A soak test: many different clients use a server for a long time. At the end the server must hold no more resources.

writer.py        writes numbered records at a steady rate
clients.py       the clients: they connect, read, stall, disconnect and reconnect
stream_check.py  checks what one client receives: no record is lost or duplicated
sampler.py       samples the resources that the worker holds, every few seconds
growth.py        decides whether a resource has grown
report.py        prints lines and writes the page
app.py           the app that gunicorn serves
"""
