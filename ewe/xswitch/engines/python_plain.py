"""The names of Python's library whose use changes nothing that lasts, for python_isolation.py.

A script that the Python engine runs itself leaves its imported modules to the next script. The engine therefore
runs a script itself only if the script keeps to this table. A name belongs here if calling it changes neither its
module nor the process, or if python_state.py undoes that change exactly after each script. A function does not
belong here if it

- registers something (csv.register_dialect), or sets something for the whole process (csv.field_size_limit);
- keeps data that it has read (linecache.getline, gettext.translation), or counts (asyncio's names of tasks);
- returns a shared object (threading.current_thread), or calls a method by name (operator.methodcaller).

A missing name costs its scripts a fork, half a millisecond. A wrong name may show a visitor a wrong page.
tests/xswitch/test_python_isolation.py compares the table with the library.
"""

# Module -> the names that a script may call. Names in capitals are constants, and may also be used as values.
HARMLESS_NAMES = {
    module: frozenset(names.split())
    for module, names in {
        "__future__": "annotations division print_function unicode_literals with_statement absolute_import",
        "abc": "ABC ABCMeta abstractmethod",
        "base64": "b64encode b64decode urlsafe_b64encode urlsafe_b64decode standard_b64encode standard_b64decode"
        " b32encode b32decode b16encode b16decode b85encode b85decode a85encode a85decode encodebytes decodebytes",
        "binascii": "hexlify unhexlify b2a_hex a2b_hex b2a_base64 a2b_base64 crc32 Error",
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "calendar": "monthrange isleap leapdays timegm month monthcalendar weekday calendar",
        "cgi": "FieldStorage parse parse_header parse_multipart escape",
        "cgitb": "enable",
        "codecs": "open encode decode BOM_UTF8",
        "collections": "Counter OrderedDict UserDict UserList ChainMap defaultdict deque namedtuple",
        "configparser": "ConfigParser RawConfigParser Error NoSectionError NoOptionError",
        "contextlib": "contextmanager closing suppress nullcontext ExitStack redirect_stdout redirect_stderr",
        "copy": "copy deepcopy",
        "csv": "reader writer DictReader DictWriter Error QUOTE_ALL QUOTE_MINIMAL QUOTE_NONE QUOTE_NONNUMERIC",
        "dataclasses": "dataclass field asdict astuple replace",
        "datetime": "datetime date time timedelta timezone tzinfo UTC MINYEAR MAXYEAR",
        "decimal": "Decimal InvalidOperation DivisionByZero ROUND_HALF_UP ROUND_HALF_EVEN ROUND_HALF_DOWN ROUND_UP"
        " ROUND_DOWN ROUND_CEILING ROUND_FLOOR",
        "email.message": "EmailMessage Message",
        "email.mime.application": "MIMEApplication",
        "email.mime.multipart": "MIMEMultipart",
        "email.mime.text": "MIMEText",
        "email.utils": "formataddr formatdate make_msgid parseaddr parsedate_to_datetime format_datetime",
        "enum": "Enum IntEnum Flag IntFlag StrEnum auto unique",
        "errno": "EACCES EAGAIN EEXIST EINTR EINVAL EIO ENOENT ENOTDIR EISDIR EPERM EPIPE ENOSPC EWOULDBLOCK",
        "fcntl": "flock lockf LOCK_EX LOCK_SH LOCK_UN LOCK_NB",
        "fnmatch": "fnmatch fnmatchcase filter translate",
        "fractions": "Fraction",
        "functools": "partial reduce wraps lru_cache cache cached_property cmp_to_key total_ordering",
        "glob": "glob iglob escape",
        "grp": "getgrgid getgrnam getgrall",
        "gzip": "open compress decompress GzipFile",
        "hashlib": "md5 sha1 sha224 sha256 sha384 sha512 sha3_256 sha3_512 blake2b blake2s new pbkdf2_hmac scrypt"
        " file_digest",
        "heapq": "heappush heappop heapify heapreplace heappushpop merge nlargest nsmallest",
        "hmac": "new digest compare_digest",
        "html": "escape unescape",
        "html.parser": "HTMLParser",
        "http.cookies": "SimpleCookie CookieError",
        "io": "StringIO BytesIO TextIOWrapper open SEEK_SET SEEK_CUR SEEK_END",
        "itertools": "accumulate chain combinations combinations_with_replacement compress count cycle dropwhile"
        " filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest",
        "json": "dumps loads dump load JSONDecodeError JSONEncoder JSONDecoder",
        "math": "acos asin atan atan2 ceil comb copysign cos cosh degrees dist e erf exp fabs factorial floor fmod"
        " fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm log log10 log1p log2 modf nan perm pi pow"
        " prod radians remainder sin sinh sqrt tan tanh tau trunc",
        "operator": "add and_ contains eq floordiv ge getitem gt index inv itemgetter le lt mod mul ne neg not_ or_"
        " pos sub truediv xor",
        "os": "access chdir chmod cpu_count curdir devnull environ environb extsep fsdecode fsencode fspath fstat"
        " fsync get_terminal_size getcwd getcwdb getegid getenv geteuid getgid getloadavg getpid getppid getuid"
        " isatty linesep link listdir lstat makedirs mkdir name path pathsep popen read readlink remove removedirs"
        " rename renames replace rmdir scandir sep stat strerror symlink system truncate umask uname unlink urandom"
        " utime walk write F_OK R_OK W_OK X_OK SEEK_SET SEEK_CUR SEEK_END",
        "os.path": "abspath basename commonpath commonprefix dirname exists expanduser expandvars getatime getctime"
        " getmtime getsize isabs isdir isfile islink ismount join lexists normcase normpath realpath relpath"
        " samefile sep split splitext",
        "pathlib": "Path PurePath PosixPath PurePosixPath",
        "pprint": "pformat pprint pp",
        "pwd": "getpwuid getpwnam getpwall",
        "random": "Random SystemRandom betavariate choice choices expovariate gauss getrandbits normalvariate "
        "randbytes randint random randrange sample seed shuffle triangular uniform",
        "re": "compile error escape findall finditer fullmatch match search split sub subn Match Pattern A ASCII"
        " DOTALL I IGNORECASE M MULTILINE S U UNICODE VERBOSE X",
        "secrets": "choice compare_digest randbelow randbits token_bytes token_hex token_urlsafe SystemRandom",
        "shlex": "quote split join",
        "shutil": "copy copy2 copyfile copyfileobj copytree disk_usage move rmtree which",
        "sqlite3": "connect Row Error DatabaseError IntegrityError OperationalError ProgrammingError"
        " PARSE_COLNAMES PARSE_DECLTYPES sqlite_version",
        "stat": "S_ISDIR S_ISREG S_ISLNK S_IMODE ST_MTIME ST_SIZE filemode",
        "statistics": "correlation fmean geometric_mean harmonic_mean linear_regression mean median median_high"
        " median_low mode multimode pstdev pvariance quantiles stdev variance",
        "string": "Template capwords ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits"
        " printable punctuation whitespace",
        "struct": "Struct calcsize error iter_unpack pack pack_into unpack unpack_from",
        "subprocess": "CalledProcessError CompletedProcess DEVNULL PIPE Popen STDOUT TimeoutExpired call check_call"
        " check_output getoutput getstatusoutput run",
        "sys": "argv byteorder exc_info executable exit float_info getdefaultencoding getfilesystemencoding"
        " getrecursionlimit getsizeof hexversion intern maxsize maxunicode platform prefix setrecursionlimit stderr"
        " stdin stdout version version_info excepthook",
        "tempfile": "NamedTemporaryFile SpooledTemporaryFile TemporaryDirectory TemporaryFile gettempdir mkdtemp",
        "textwrap": "dedent fill indent shorten wrap",
        "time": "altzone asctime ctime daylight gmtime localtime mktime monotonic monotonic_ns perf_counter"
        " perf_counter_ns sleep strftime strptime struct_time time time_ns timezone tzname",
        "traceback": "format_exc print_exc",
        "types": "SimpleNamespace",
        "typing": "Any Callable ClassVar Dict Final FrozenSet Generic IO Iterable Iterator List Literal Mapping"
        " NamedTuple NoReturn Optional Protocol Sequence Set TextIO Tuple TypedDict TypeVar Union cast"
        " TYPE_CHECKING",
        "unicodedata": "category combining name normalize lookup",
        "urllib.parse": "parse_qs parse_qsl quote quote_from_bytes quote_plus unquote unquote_plus unquote_to_bytes"
        " urldefrag urlencode urljoin urlparse urlsplit urlunparse urlunsplit",
        "uuid": "UUID uuid3 uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL",
        "xml.etree.ElementTree": "Element ElementTree ParseError SubElement XML fromstring indent iterparse parse"
        " tostring",
        "zlib": "adler32 compress crc32 decompress error",
    }.items()
}

# More names that may be used as values: objects that cannot change, and objects that each script gets new
USABLE_AS_VALUES = {
    "datetime.timezone.utc", "math.e", "math.inf", "math.nan", "math.pi", "math.tau", "os.curdir", "os.devnull",
    "os.environ", "os.environb", "os.extsep", "os.linesep", "os.name", "os.path.sep", "os.pathsep", "os.sep",
    "sqlite3.Row", "sqlite3.sqlite_version", "string.ascii_letters", "string.ascii_lowercase",
    "string.ascii_uppercase", "string.digits", "string.hexdigits", "string.octdigits", "string.printable",
    "string.punctuation", "string.whitespace", "sys.argv", "sys.byteorder", "sys.executable", "sys.float_info",
    "sys.hexversion", "sys.maxsize", "sys.maxunicode", "sys.platform", "sys.prefix", "sys.stderr", "sys.stdin",
    "sys.stdout", "sys.version", "sys.version_info", "time.altzone", "time.daylight", "time.timezone",
    "time.tzname",
}  # fmt: skip
# Names in capitals that are not constants
CAPITALS_NOT_CONSTANT = {"abc.ABC", "typing.IO", "uuid.UUID", "xml.etree.ElementTree.XML"}
# Variables that a script may set, and tables that it may change: the engine restores them
SETTABLE_VARIABLES = {"sys.argv", "sys.excepthook", "sys.stderr", "sys.stdin", "sys.stdout"}
CHANGEABLE_TABLES = {"os.environ", "os.environb", "sys.argv"}
# Classes that a script may derive from: no table is reachable from `self` through them or their bases
DERIVABLE_CLASSES = {
    "abc.ABC", "abc.ABCMeta", "collections.OrderedDict", "collections.UserDict", "collections.UserList",
    "collections.defaultdict", "datetime.tzinfo", "enum.Enum", "enum.Flag", "enum.IntEnum", "enum.IntFlag",
    "enum.StrEnum", "html.parser.HTMLParser", "json.JSONDecoder", "json.JSONEncoder", "string.Template",
    "typing.Generic", "typing.NamedTuple", "typing.Protocol", "typing.TypedDict",
}  # fmt: skip
