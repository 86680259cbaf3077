# A feature party: has features, connects to the label party.
#
#     docker build -f deploy/docker/feature.Dockerfile -t tpsl-feature .
#
# TPSL is the image of tpsl.Dockerfile.
ARG TPSL=tpsl

FROM ${TPSL}
EXPOSE 9101
ENTRYPOINT ["tpsl", "feature"]
CMD ["join", "/etc/tpsl/job.yaml", "--local", "/etc/tpsl/local.yaml", "--set", "local.log=json"]
