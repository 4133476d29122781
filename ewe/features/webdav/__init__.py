"""WebDAV, class 1 (RFC 4918): files that clients write, for one location of a site (setting `webdav`).

feature.py      which method does what; the conditions under which it does it
upload.py       PUT: a body becomes a file, all of it or nothing
changes.py      DELETE, MKCOL, COPY, MOVE
tree.py         from a path to a name in an open directory; nothing leads out, nothing follows a link
properties.py   PROPFIND and PROPPATCH: the XML that comes, and the XML that goes
"""
