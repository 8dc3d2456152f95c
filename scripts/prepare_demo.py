"""Opens a model without its weights: `python scripts/prepare_demo.py NAME`, while the kernels compile.

Python keeps the bytecode of what is imported here, and Pippin what libraries say of the model, for the first start.
"""

import sys

import pippin.api.server
import pippin.engines.language.loading.engine
import pippin.worker.main  # noqa: F401
from pippin.cli.local import open_catalog
from pippin.config.load import load
from pippin.config.settings import Sources
from pippin.core.models import WorkerSpec
from pippin.engines.language.prompt.preparer import open_preparer

open_preparer(WorkerSpec(info=open_catalog(load(Sources())).resolve(sys.argv[1])))
