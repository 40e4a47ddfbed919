# docker build -f release/images/nginx.Dockerfile build/images    (after make images)
FROM scratch
COPY nginx /
ENV PATH=/usr/sbin
USER 65532:65532
STOPSIGNAL SIGQUIT
ENTRYPOINT ["/usr/sbin/nginx", "-e", "stderr", "-g", "daemon off;"]
