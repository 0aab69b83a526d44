"""Files that a room finds by their names: in its folder, and in folders of that name in apps."""

import importlib
import importlib.abc
import importlib.util
import os
import pkgutil
from typing import Any

_APPS = f"{__name__.partition('.')[0]}.apps"


def extensions(package: str) -> dict[str, str]:
  """Name -> module of the files in a package and in the apps' folders of its name, sorted."""
  folder = package.rpartition(".")[2]
  found = {}
  for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
    found[module.name] = f"{package}.{module.name}"
  (apps,) = importlib.import_module(_APPS).__path__
  for app in pkgutil.iter_modules([apps]):
    for module in pkgutil.iter_modules([os.path.join(apps, app.name, folder)]):
      found[module.name] = f"{_APPS}.{app.name}.{folder}.{module.name}"
  return dict(sorted(found.items()))


def modules(package: str, declared: str) -> list[Any]:
  """The modules of these files that declare such a name, imported."""
  found = map(importlib.import_module, extensions(package).values())
  return [module for module in found if hasattr(module, declared)]


def source_of(module: str) -> str:
  """The source of a module, which is not imported; "" if it has none."""
  spec = importlib.util.find_spec(module)
  if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
    return ""
  return spec.loader.get_source(module) or ""
