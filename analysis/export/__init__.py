"""From ``TrialConfig`` to the frameworks people run, and back. Needs neither torch nor ray.

>>> from analysis.export import export_config, import_file
>>> print(export_config(config, "openrlhf", version="0.11.1").text)
>>> import_file("openrlhf", Path("train.sh")).config
"""

from analysis.export.export import Export, export_config
from analysis.export.importer import Imported, import_file, import_text
from analysis.export.source import trial_config
from analysis.export.targets import FRAMEWORKS, PLAIN, TRIALS
from analysis.export.trials import copy_study, has_study, write_table

__all__ = [
    "FRAMEWORKS",
    "PLAIN",
    "TRIALS",
    "Export",
    "Imported",
    "copy_study",
    "export_config",
    "has_study",
    "import_file",
    "import_text",
    "trial_config",
    "write_table",
]
