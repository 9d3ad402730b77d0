#!/bin/sh
# Copies checkpoints and samples as they are written:  run.on_event = "examples/on_event/upload.sh s3:bucket/run"
# UPLOAD is the command that copies, rclone's by default; it is given a path and the folder that this goes into.
to=$1
while read -r event; do
  case $event in
    '{"type":"checkpoint"'*) path=$(printf '%s' "$event" | sed 's/.*"folder":"\([^"]*\)".*/\1/') ;;
    '{"type":"sample"'*) path=$(printf '%s' "$event" | sed 's/.*"file":"\([^"]*\)".*/\1/') ;;
    *) continue ;;
  esac
  into=$to
  [ ! -d "$path" ] || into=$to/$(basename "$path")
  ${UPLOAD:-rclone copy} "$path" "$into" || echo "upload: $path was not copied" >&2
done
