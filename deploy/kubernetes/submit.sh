#!/bin/sh
# Starts a job in Kubernetes. KUBERNETES_API is the address of the API server, IMAGE an image with
# Spark 4.3 for Python in which 'penstock[spark]' is installed, JOB a program in that image.
set -eu
exec spark-submit \
  --master "k8s://${KUBERNETES_API}" \
  --deploy-mode cluster \
  --name "${NAME:-shop}" \
  --conf spark.kubernetes.namespace=penstock \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
  --conf spark.kubernetes.container.image="${IMAGE}" \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=1 \
  --conf spark.executor.memory=2g \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.options.claimName=penstock-data \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName=penstock-data \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.submission.waitAppCompletion=false \
  "local://${JOB:-/opt/penstock/pipeline.py}" "$@"
