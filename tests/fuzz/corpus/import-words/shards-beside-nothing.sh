train.py --dataset_base_path D --model_paths '[["a-1.safetensors","a-2.safetensors"]]'
