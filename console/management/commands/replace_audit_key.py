"""`manage.py replace_audit_key`: another key signs the audit log; both sign the change."""

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.services.audit_rotation import audit_key_replace


class Command(ActingCommand):
    """Replace the key."""

    help = "Replace the key that signs the audit log. Where this machine keeps it, for all others."
    needs = Act.CLOSE

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Print the new public key."""
        self.stdout.write(audit_key_replace(actor=actor))
