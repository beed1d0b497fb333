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


def part(one: Component) -> Part:
    """A component in CycloneDX's terms."""
    made, declared = LicenseFactory(), LicenseAcknowledgement.DECLARED
    licences = [made.make_from_string(one.licence, license_acknowledgement=declared)] if one.licence else []
    return Part(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        bom_ref=one.url,
        purl=PackageURL.from_string(one.url),
        authors=[OrganizationalContact(name=name) for name in one.authors],
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in one.sha256],
    )


def document(name: str, version: str, architecture: str, components: Iterable[Component], epoch_s: int) -> str:
    """The SBOM of a Debian package."""
    parts = {one.url: (one, part(one)) for one in components}
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
    for one, made in parts.values():
        bom.register_dependency(made, [parts[used][1] for used in one.depends])
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"


def fault(text: str) -> str | None:
    """What in a document does not follow CycloneDX's schema; None: nothing."""
    found = JsonStrictValidator(SCHEMA).validate_str(text)
    return None if found is None else str(found)
