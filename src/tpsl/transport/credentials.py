from tpsl.net.credentials import *  # noqa: F403
from tpsl.net.credentials import CertificateError, Certificates, common_name, peer_name, read_certificates  # noqa: F401
