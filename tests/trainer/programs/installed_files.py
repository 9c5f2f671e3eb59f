"""Print, as a JSON list, the files of the named packages and of those they require in this site-packages."""

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

found: set[str] = set()
seen: set[str] = set()
wanted = sys.argv[1:]
while wanted:
    name = wanted.pop()
    if name in seen:
        continue
    seen.add(name)
    try:
        package = distribution(name)
    except PackageNotFoundError:  # is for another platform
        continue
    found |= {
        str(package.locate_file(file.parts[0])) for file in package.files or () if file.parts[0] != ".."
    }
    required = [line for line in package.requires or () if "extra ==" not in line]
    wanted += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required]
print(json.dumps(sorted(found)))
