"""A server under many clients of all manners for as long as one likes: is it in the end what it was at the start?

writer.py   records at a steady rate, numbered in each partition
clients.py  who comes, reads, stalls, goes and comes back
progress.py what one client has had: nothing lost, nothing twice
watch.py    what the worker holds, every few seconds
verdict.py  whether that has grown
report.py   lines, a picture, a page
app.py      what gunicorn serves
"""
