"""Values that several rooms need and that are no settings."""

# PATH of a script or an engine, where the server has none or does not pass its own on.
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

# The URL of X-Switch's status page. The server passes requests for it on, and X-Switch answers them.
XSWITCH_STATUS_PATH = "/xswitch-status"

# The directory by which a web application of Java is known, and the directories below which nothing is for clients:
# Servlet specification section 10.5. Their names count in any case of letters.
WEB_INF = "WEB-INF"
PRIVATE_DIRECTORIES = (WEB_INF, "META-INF")
LIBCGI_PREFIX = "/libcgi-bin/"  # of the URLs of libraries
LIBCGI_SUFFIX = ".so"  # of their files
# The extensions of scripts that X-Switch's built-in engines run
ENGINE_EXTENSIONS = {"python": (".py",), "perl": (".pl",), "php": (".php",), "libcgi": (LIBCGI_SUFFIX,)}
# X-Switch's packages: their directory in a user's home, unless the setting `packages` names another one, and the
# ends of their names
PACKAGE_DIRECTORY = "xswitch-packages"
PACKAGE_SUFFIXES = (".zip", ".war")
