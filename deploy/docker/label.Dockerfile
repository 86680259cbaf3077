# The label party: has the labels and the vault, listens.
#
#     docker build -f deploy/docker/label.Dockerfile -t tpsl-label .
#
# TPSL is the image of tpsl.Dockerfile.
ARG TPSL=tpsl

FROM ${TPSL}
EXPOSE 7443 9101
ENTRYPOINT ["tpsl", "label"]
CMD ["serve", "/etc/tpsl/job.yaml", "--local", "/etc/tpsl/local.yaml", "--set", "local.log=json"]
