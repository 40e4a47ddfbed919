# docker build -f release/images/sidecar.Dockerfile build/images    (after make images)
FROM scratch
COPY sidecar /
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/gatehouse-sidecar"]
