"""The list of a package's parts (SBOM) in CycloneDX's JSON: the same bytes each time."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable

from components import Component
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Part
from cyclonedx.model.component import ComponentType
from cyclonedx.model.contact import OrganizationalContact
from cyclonedx.model.license import LicenseAcknowledgement
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

SCHEMA = SchemaVersion.V1_6


def part(component: Component) -> Part:
    """A component in CycloneDX's terms."""
    made, declared = LicenseFactory(), LicenseAcknowledgement.DECLARED
    licences = [made.make_from_string(component.licence, license_acknowledgement=declared)] if component.licence else []
    return Part(
        name=component.name,
        version=component.version,
        type=ComponentType.LIBRARY,
        bom_ref=component.url,
        purl=PackageURL.from_string(component.url),
        authors=[OrganizationalContact(name=name) for name in component.authors],
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in component.sha256],
    )


def document(name: str, version: str, architecture: str, components: Iterable[Component], epoch_s: int) -> str:
    """The SBOM of a Debian package."""
    parts = {component.url: (component, part(component)) for component in components}
    url = f"pkg:deb/slackwater/{name}@{version}?arch={architecture}"
    whole = Part(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=url,
        purl=PackageURL.from_string(url),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom = Bom(components=[made for _, made in parts.values()], serial_number=uuid.uuid5(uuid.NAMESPACE_URL, url))
    bom.metadata.component = whole
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch_s, datetime.UTC)
    bom.register_dependency(whole, [made for _, made in parts.values()])
    for component, made in parts.values():
        bom.register_dependency(made, [parts[used][1] for used in component.depends])
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"


def fault(text: str) -> str | None:
    """What in a document does not follow CycloneDX's schema; None: nothing."""
    error = JsonStrictValidator(SCHEMA).validate_str(text)
    return None if error is None else str(error)
